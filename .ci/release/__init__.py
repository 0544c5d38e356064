"""`make release`: build, check and describe a release from a clean commit; docs/how-to/releasing.md has the steps."""
