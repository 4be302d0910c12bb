"""What gateway and engine share: reasons, the wire protocol, block keys, model shapes, chat templates. No torch."""
