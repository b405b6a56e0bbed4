"""The simulation: the real engine and the real store on virtual time, one seed for everything, faults, checkers."""
