"""The devices included in guideway. They are registered like third-party devices, and may be subclassed.

`guideway.devices.numpy.device.NumpyDevice` is the reference for every other device,
`guideway.devices.torch.device.TorchDevice` holds logits in torch tensors on any torch device, and
`guideway.devices.philox` is the random number generator of every draw, for any array library.
"""
