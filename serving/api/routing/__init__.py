"""Parts of every route: reading, authentication, answers, errors and the OpenAPI document."""
