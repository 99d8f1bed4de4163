"""Programs of Paddle as records, and as the bytes they came from: what nobody changed is written as it was read."""
