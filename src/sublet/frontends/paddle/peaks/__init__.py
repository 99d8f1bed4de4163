"""The bytes a run holds: walked through operator by operator, as Paddle's executor does and as any plan must."""
