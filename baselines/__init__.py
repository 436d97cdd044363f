"""The schemes that Teal is compared with, one module each: ``make(spec, model)`` returns a scheme,
whose ``solve(problem)`` returns an allocation.
"""
