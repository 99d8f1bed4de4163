"""What is known of Paddle's operators: extents by rules, facts by experiment, what each reads and writes."""
