"""Every error about user input is worded here, once, and raised before anything has changed.

Template: ``{caller}: `{name}` must {rule}; got {value}, first at {place}, {count} in all. {remedy}.``
"""

# isort: off
from reprior._check.arrays import (
    Fault, as_array, check_logits, check_matrix, check_proba, check_row, check_rows, is_masked, row_fault,
)  # fmt: skip
from reprior._check.errors import (
    NOTED, REJECTED, UNLABELLED, UNNAMED, InputError, counted, fail, listed, missing, p_text, percent, perhaps, quoted,
    refuse_where, spelled, warn,
)  # fmt: skip
from reprior._check.frames import Frame, frame_of, is_named, number_of
from reprior._check.names import (
    by_name, check_classes, check_order, check_text, column_map, difference, in_columns, in_order, is_none,
    like_input, names_of, order_of, own_names, values_of,
)  # fmt: skip
from reprior._check.values import (
    as_rng, check_choice, check_flag, check_int, check_level, check_number, check_prior, check_source,
)  # fmt: skip

__all__ = [
    "NOTED", "REJECTED", "UNLABELLED", "UNNAMED", "Fault", "Frame", "InputError", "as_array", "as_rng", "by_name",
    "check_choice", "check_classes", "check_flag", "check_int", "check_level", "check_logits", "check_matrix",
    "check_number", "check_order", "check_prior", "check_proba", "check_row", "check_rows", "check_source",
    "check_text", "column_map", "counted", "difference", "fail", "frame_of", "in_columns", "in_order", "is_masked",
    "is_named", "is_none", "like_input", "listed", "missing", "names_of", "number_of", "order_of", "own_names",
    "p_text", "percent", "perhaps", "quoted", "refuse_where", "row_fault", "spelled", "values_of", "warn",
]  # fmt: skip
