"""Why a run did not converge: findings, from what it recorded."""
