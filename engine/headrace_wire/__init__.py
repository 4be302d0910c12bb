"""What the gateway and the engine share: reasons, the wire protocol, block keys, model shapes, chat templates. No torch."""
