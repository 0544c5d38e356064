"""Models and updates as bytes: envelope, tensors, native codec, and error feedback for lossy codecs.

from sparsyedge.edge.wire import read_frame

frame = read_frame("runs/first/model.frame")
frame.state["fc.weight"]           # a float32 array; frame.header has run, round, codec and base
"""

from sparsyedge.edge.wire.frame import Frame
from sparsyedge.edge.wire.frame_file import read_frame

__all__ = ["Frame", "read_frame"]
