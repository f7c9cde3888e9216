"""The paper's figures and claims, reproduced. The library never imports this package."""
