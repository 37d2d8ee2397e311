"""Helpers of Opacus, at their places there."""
