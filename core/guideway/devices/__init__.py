"""The devices that come with guideway, registered as a stranger's are, and made to be derived from.

`guideway.devices.numpy.device.NumpyDevice` is the reference that every other device is checked against,
`guideway.devices.torch.device.TorchDevice` holds logits in torch tensors on any torch device, and
`guideway.devices.philox` is the random function behind every draw, for any array library.
"""
