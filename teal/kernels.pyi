"""Names for compiled functions."""

from teal.runtime.arrays import BoolArray as BoolArray
from teal.runtime.arrays import FloatArray as FloatArray
from teal.runtime.arrays import Int64Array as Int64Array
from teal.runtime.arrays import IntArray as IntArray
from teal.runtime.parallel import inner_kernel as inner_kernel
from teal.runtime.parallel import kernel as kernel
from teal.runtime.parallel import parallel_kernel as parallel_kernel
