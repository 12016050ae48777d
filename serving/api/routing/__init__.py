"""Functions and classes shared by all routes: request bodies, authentication, answers, errors and route classes."""
