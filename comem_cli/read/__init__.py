"""Pack selected residuals with a question and run the upper half over them."""
