"""Load a model, split it at layer j, write residuals with its lower half."""
