"""Parts that all routes share: request bodies, authentication, answers, errors and route classes."""
