"""What Paddle's operators make of shapes."""
