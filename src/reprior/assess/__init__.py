"""How sure an estimate is, whether the method applies, and how far an estimate is from the truth."""
