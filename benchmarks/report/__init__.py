"""`sparsyedge report`: what one or several runs came to, as a page with plots."""
