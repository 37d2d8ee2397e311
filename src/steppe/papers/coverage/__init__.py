"""Every table and figure of the five papers, and what came of it, as one page."""

from steppe.papers.coverage.item import Item as Item
from steppe.papers.coverage.page import PAPERS as PAPERS
from steppe.papers.coverage.page import counts as counts
from steppe.papers.coverage.page import rewritten as rewritten
from steppe.papers.coverage.page import text as text
from steppe.papers.coverage.page import write as write
