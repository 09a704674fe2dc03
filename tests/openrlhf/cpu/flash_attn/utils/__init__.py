"""Test only."""
