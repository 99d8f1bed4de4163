"""Memory prediction: simulated runs, operator by operator, of Paddle's executor and of any plan."""
