"""The facts that the checks need, one module for each kind; the only part of doctor that touches the machine."""
