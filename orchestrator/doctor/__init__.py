"""What ``cornerman doctor`` looks at: facts are gathered first, then small pure checks make findings of them."""
