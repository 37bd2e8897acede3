"""What leaves a client: filters around the upload, gradients with noise, the accountant of both, and attacks."""
