"""Which tensors of PyTorch are sent as the bytes of their memory."""

import torch


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the elements in the memory of this process are the whole content of a tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )
