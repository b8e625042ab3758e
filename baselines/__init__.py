"""The rivals of DIVISION: our own implementations of the methods it is compared with."""
