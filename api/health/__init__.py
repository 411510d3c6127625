"""What is wrong with a job, and what helps."""
