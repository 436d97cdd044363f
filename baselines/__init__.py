"""The schemes that Teal is compared with, one module each: make(spec, model) -> scheme,
scheme.solve(problem).
"""
