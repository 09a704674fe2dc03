"""Comparisons of methods: a grid of arms x seeds over one recipe, with intervals.

``grid`` lists the runs, ``runs`` starts them, ``results`` keeps what they measured, ``analysis``
summarises it, ``page`` shows it.
"""
