"""Shape rules of Paddle's operators."""
