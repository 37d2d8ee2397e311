"""Every public constant of a private run, and what it costs.

Imports the places 1 to 5, `accounting`, `utils`, `errors`.
"""

from steppe.plan.plan import Plan as Plan
