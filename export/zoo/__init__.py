"""The models that come with sparsyedge, one file each; `MODELS` in export/models.py names them."""
