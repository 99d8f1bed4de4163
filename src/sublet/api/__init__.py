"""What users call: reading what they bring, compiling it, advice."""
