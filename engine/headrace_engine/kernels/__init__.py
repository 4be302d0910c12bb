"""Operations that torch has no single call for, compiled for the processor at hand."""
