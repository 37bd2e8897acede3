"""What silos and server say to each other: joining, agreeing, requests and answers, and what a silo allows."""
