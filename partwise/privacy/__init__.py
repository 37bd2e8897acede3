"""Privacy of uploads: filters, gradients with noise, the accountant of both, and attacks."""
