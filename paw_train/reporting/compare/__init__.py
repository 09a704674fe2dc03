"""Compares methods: a grid of arms x seeds over one recipe, run cell by cell, with intervals.

``grid`` says what is run, ``execute`` runs it, ``results`` keeps it, ``analysis`` judges it, ``tables`` and
``page`` show it.
"""
