"""Which template instances to rent in which region: problem, solver, independent checker, plan."""
