"""The kernel: values, rules and decisions. No I/O, no await, no SQL; standard library only."""
