"""What runs in the container: TorchX components, the launcher and the trainer."""
