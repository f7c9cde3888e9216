"""Formulas such as `sick ~ age + C(stage) + bs(bmi, df=4)`: the same design at every site and at prediction."""
