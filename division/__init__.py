"""Activation-compressed training: keep a small copy of what autograd saves, exactly accounted."""

from division import codecs, kernels
from division.codec import Codec, Packed
from division.context import capture
from division.gradients import gradient_error
from division.ledger import Ledger
from division.method import Method
from division.method import names as methods
from division.model import compress, measure, method_of, restore
from division.planner import Plan, plan

__all__ = [
    "Codec",
    "Ledger",
    "Method",
    "Packed",
    "Plan",
    "capture",
    "codecs",
    "compress",
    "gradient_error",
    "kernels",
    "measure",
    "method_of",
    "methods",
    "plan",
    "restore",
]
