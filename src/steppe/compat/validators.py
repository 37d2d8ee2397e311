"""Checks and replacements of layers, where Opacus has them."""

from steppe.compat.module_validator import ModuleValidator as ModuleValidator
