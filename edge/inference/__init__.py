"""The model in use: the files a run delivers, what they say about themselves, and sessions that only infer.

Needs neither torch nor the onnx package nor protobuf, so that a device can write its model too.
"""
