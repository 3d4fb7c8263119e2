"""The paged pool: blocks and who holds them, the tensors behind them, sequences over both."""
