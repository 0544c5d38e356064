"""`make release`: build, check and describe a release from a clean commit; docs/releasing.md has the steps."""
